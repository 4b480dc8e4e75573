"""Plans and stock engines are started cold in processes of their own, and measured."""
