"""An image studio sold for credits: an example app on Penstock."""
