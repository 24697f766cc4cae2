"""The pages of the console, one module for each part of a cluster. Each exports its `ROUTES`."""
