"""From the topics to the offload plan: which ledgers go, and which rows of the plan one run works on."""
