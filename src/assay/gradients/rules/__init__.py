"""One file a layer family: how a layer's input and output gradient give each record's gradient."""
