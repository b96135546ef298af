"""The metadata store's trees as tables, and what brokers have loaded of them."""
