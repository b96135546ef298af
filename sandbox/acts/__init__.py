"""The demo's acts: what each plants beside the seed, and what must hold once the product has acted."""
