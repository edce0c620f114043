"""Pages that are made of the code: docs/checks.md, docs/fixtures.md, docs/inventory.md, and README's options."""
