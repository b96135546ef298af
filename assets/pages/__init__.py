"""What the assets' pages share: tables, samples, plots, versions, lineage."""
