"""Each file is one extension of FedUnseen; pyproject.toml names them."""
