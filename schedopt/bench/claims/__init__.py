"""What the sources claim, each row computed again by the machinery that everything here uses."""
