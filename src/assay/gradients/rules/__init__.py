"""How a layer's input and output gradient give each record's gradient, with one file for each family of layers."""
