"""What the chapter measures: plans and stock engines, started cold in processes of their own."""
