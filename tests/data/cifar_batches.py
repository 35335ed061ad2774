"""Batches of CIFAR-10 as their author wrote them."""

from __future__ import annotations

import struct


def python2_batch(data, labels):
    """What Python 2's cPickle wrote: protocol 2 with byte strings (the form of the official files)."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    kind = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"M" + struct.pack("<H", data.shape[0]) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
    state = b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<I", data.size) + data.tobytes() + b"tb"
    answers = b"](" + b"".join(b"K" + bytes([int(k)]) for k in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + state + short(b"labels") + answers + b"u."
