"""PCI functions, their links and bindings, IOMMU groups."""
