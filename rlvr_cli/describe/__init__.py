"""What a method is, for people: its sheet, its page, and its weights in a picture."""
