"""Power loss: what a real worker asked of its disk, and what of it is there whenever the power failed."""
