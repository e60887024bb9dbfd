"""A small Molmo2 trained from nothing on drawn pictures: the world, the questions, the training and the export."""
