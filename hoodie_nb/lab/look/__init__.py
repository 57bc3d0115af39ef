"""How pictures look: their colours and text sizes, SVG elements, and SVG as PNG."""
