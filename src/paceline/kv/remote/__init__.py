"""What connectors to servers and to other engines are made of."""
