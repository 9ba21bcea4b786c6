# PyTorch's snapshot as Python writes it
memplan replay tests/data/snapshots/protocol4.pickle --conf expandable_segments:True
