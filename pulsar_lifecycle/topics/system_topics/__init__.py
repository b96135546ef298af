"""Topics of brokers and function workers, read out of their ledgers: no broker is asked, none is loaded."""
