"""FedAST in a Flower federation: what is trained is in federation.toml."""
