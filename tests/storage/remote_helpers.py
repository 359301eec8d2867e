"""A store that dies: what a kill leaves of a sequence of remote operations."""

import contextlib

import pytest
import tensorflow as tf

from tfrl.storage import remote, working_copy


class KilledError(BaseException):
    """Stands for the end of the process."""


@contextlib.contextmanager
def killed_after(operations, monkeypatch):
    """Raises KilledError instead of the operation after so many, and instead of all later ones."""
    done, call = [0], remote._call

    def counted(url, function, *arguments):
        if done[0] >= operations:
            raise KilledError
        done[0] += 1
        return call(url, function, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(remote, "_call", counted)
        patch.setattr(remote, "_TRANSFERS", 1)
        yield


def new_process():
    """Forgets what a process knows, so that the next use of a folder is that of another one."""
    working_copy.forget()


@pytest.fixture(name="bucket")
def fixture_bucket(request, monkeypatch):
    """An empty folder of ram://, on which no operation of directories or appends is allowed."""

    def refuse(*arguments, **named):
        raise AssertionError(f"an object store cannot do this: {arguments}")

    for name in ("rename", "rmtree"):
        monkeypatch.setattr(tf.io.gfile, name, refuse)
    yield f"ram://{request.node.nodeid.translate(str.maketrans('/:[]', '____'))}"
    new_process()
