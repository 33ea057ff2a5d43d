"""Description of methods and tasks: sheets, generated pages, and charts of the weights."""
