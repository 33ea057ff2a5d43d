"""Research with the tool: claims of papers, the lab's base models, studies. Not installed with the package."""
