"""Note the present files in dvc.lock, as if every stage had run: `make relock`, once it is clear that no result changes.

Rewording a text or moving code leaves dvc.lock behind the sources: a clone would then measure again. What only DVC's cache
holds (predictors, the page) may be missing here: of it the lock keeps what it has. Stages that dvc.yaml lacks leave the lock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from dvc.repo import Repo
from dvc.utils.serialize import modify_yaml

_LOCK = Path("dvc.lock")


def main() -> None:
    """Write dvc.lock, and say which stages changed."""
    before = yaml.safe_load(_LOCK.read_text(encoding="utf-8"))["stages"]
    with Repo() as repo, repo.lock:
        stages = repo.index.stages
        for stage in stages:
            stage.save(allow_missing=True, run_cache=False)
            stage.commit(allow_missing=True, relink=False)
        written = {out.fs_path: out.hash_info for stage in stages for out in stage.outs}
        for stage in stages:
            for dep in stage.deps:  # a stage that the lock did not know, of a file that only the cache holds
                dep.hash_info = dep.hash_info or written.get(dep.fs_path, dep.hash_info)
            stage.md5 = stage.compute_md5()
            stage.dump(update_pipeline=False)
        known = {stage.addressing for stage in stages}
    with modify_yaml(_LOCK) as document:
        noted = document["stages"]
        for name in set(noted) - known:
            del noted[name]
        changed = [name for name, entry in noted.items() if entry != before.get(name)]
    sys.stdout.write(f"{len(changed)} of {len(known)} stages noted again: {', '.join(changed) or 'none'}\n")


if __name__ == "__main__":
    main()
