"""What charts share: the look of a figure and its file; lines, panels and axes before they are drawn."""
