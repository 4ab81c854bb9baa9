"""Licence of a file or a project as an SPDX name: `SPDX-License-Identifier` lines, and the words of licence texts."""

from __future__ import annotations

import re


_SPDX = re.compile(r"SPDX-License-Identifier:\s*\(?\s*([A-Za-z0-9.+-]+(?:\s+(?:OR|AND|WITH)\s+[A-Za-z0-9.+-]+)*)")
LICENSE_FILE = re.compile(r"(?:un)?licen[sc]e|copying|copyright", re.I)
# Words of a text, in any layout, that name it; the first that is found wins, so the narrower stand first.
_PHRASES = (
    ("AGPL-3.0", "gnu affero general public license"),
    ("LGPL-3.0", "gnu lesser general public license version 3"),
    ("LGPL-2.1", "gnu lesser general public license"),
    ("LGPL-2.0", "gnu library general public license"),
    ("GPL-3.0", "gnu general public license version 3"),
    ("GPL-2.0", "gnu general public license version 2"),
    ("MPL-2.0", "mozilla public license version 2.0"),
    ("MPL-2.0", "mozilla public license, v. 2.0"),
    ("EPL-2.0", "eclipse public license - v 2.0"),
    ("Apache-2.0", "apache license version 2.0"),
    ("PSF-2.0", "python software foundation license version 2"),
    ("Unlicense", "this is free and unencumbered software released into the public domain"),
    ("CC0-1.0", "cc0 1.0 universal"),
    ("BSL-1.0", "boost software license - version 1.0"),
    ("Zlib", "this software is provided 'as-is', without any express or implied warranty"),
    ("ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"),
    ("MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"),
)
_BSD = "redistribution and use in source and binary forms"
_BSD_NAMES = "neither the name"


def license_of(text: str) -> str | None:
    """
    Licence that a text names.

    Args:
        text (`str`): A licence file, or the head of a source file.

    Returns:
        `str` or `None`: SPDX name, or an expression of several ("MIT OR Apache-2.0"); `None` if none is known.
    """
    if "SPDX" in text and (found := _SPDX.search(text)):
        return " ".join(found[1].split())
    words = " ".join(re.sub(r"(?m)^[\s#/*;!%-]+", " ", text).split()).lower()
    words = words.replace("license, version", "license version")
    for name, phrase in _PHRASES:
        if phrase in words:
            return name
    if _BSD in words:
        return "BSD-3-Clause" if _BSD_NAMES in words else "BSD-2-Clause"
    return None
