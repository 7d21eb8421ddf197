"""Parts that several pages share: alerts, charts, filters, forms, and the words for states."""
