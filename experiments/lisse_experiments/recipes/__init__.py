"""What each way of training buys and costs: one table of recipes, measured by the same instruments."""
