"""Static memory planning: where buffers of known lifetimes lie, so that none that live at the same time overlap."""
