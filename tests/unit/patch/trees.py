"""Small SGLang package folders: the files that a patch touches, and what tells the version."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from sglang_ddtree.host.source_tree import installed_root

VERSION = "0.5.23"
# Of SGLang 0.5.23's published files, and of the same files edited by hand (sha256sum).
ORIGINAL = {
    "srt/plugins/__init__.py": "3a975a73f1a7887e68c81ea7a2530250597ac8ae978efc0b0f70f038a99a3164",
    "srt/speculative/spec_info.py": "11d25b728ea18aeff82bc269c65a6608b5c9638b0ab754f284b2df76bead7910",
}
PATCHED = {
    "srt/plugins/__init__.py": "67c8ceda1014ddab86a633a6499c3d179576f925e0d2e42bcb0543b0955d86b7",
    "srt/speculative/spec_info.py": "87232f7906cd2773bcc4e3f1afd704ae4ab83980c3a398096d79b97df0d09166",
}
FILES = tuple(ORIGINAL)


def minimal(folder: Path) -> Path:
    """A package folder with the pinned SGLang's own files."""
    source = installed_root()
    assert source is not None
    root = folder / "sglang"
    for file in ("_version.py", *FILES):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / file, root / file)
    return root


def hashes(root: Path) -> dict[str, str]:
    """The SHA-256 of each file that a patch touches."""
    return {file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in FILES}


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below `root` with its content, bytecode left out."""
    paths = [path for path in sorted(root.rglob("*")) if "__pycache__" not in path.parts]
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else b"(folder)" for p in paths}
