"""Starts the worker as `edgeplan run` starts: the library is loaded while modules are imported."""

from __future__ import annotations

from edgeplan.runtime import preloading


def main() -> None:
    """Begin to load the library, and go on as the worker."""
    preloading.begin()
    from edgeplan.runtime.streaming import worker  # noqa: PLC0415  see above

    worker.main()


if __name__ == "__main__":
    main()
