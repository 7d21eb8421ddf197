"""One module per page: it reads what the page shows and renders one template."""
