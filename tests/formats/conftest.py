"""What the tests of several formats need."""

import pytest


@pytest.fixture
def write(request, tmp_path):
    """Put bytes into a file, named by the test or by ``FILE`` of its module, and say where."""

    def write(data, name=request.module.FILE):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write
