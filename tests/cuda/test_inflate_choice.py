"""When deflated files are inflated on the device, and what the report says otherwise."""

import numpy as np
import pytest
from cuda.stand_in import StandIn, StandInNvcomp
from cuda.test_feed import compare, refuse, settle_for
from cuda.test_inflate import Inflating, deflated, image, images, spoiling
from formats.making import Entry, archive

import ndfeed
from ndfeed.cuda.driver import Refused
from ndfeed.cuda.inflate_choice import Rates, is_faster
from ndfeed.cuda.nvcomp import load_nvcomp
from ndfeed.cuda.side import Sent
from ndfeed.loading.loader import Loader


def test_the_faster_one_is_chosen():
    assert is_faster(Rates(101, 100))
    assert not is_faster(Rates(100, 100))


class Hesitant(Inflating):
    """Takes what the comparison finds, and batches of either kind."""

    prefer = staticmethod(lambda rates: False)

    def finish(self, made):
        if all(hasattr(values, "address") for values in made.values()):
            return super().finish(made)
        self._side.join()
        copies = {name: np.ascontiguousarray(values) for name, values in made.items()}
        there = {name: self._side.memory.empty(name, len(made[name])) for name in made}
        with self._side.driver.context():
            for name, values in copies.items():
                if values.nbytes:
                    self._side.stream.copy(there[name].address, values.ctypes.data, values.nbytes)
        self._side.record().wait()
        return Sent(there, self._side.event)


def way_of(ds, batch_size=16, driver=None, load_library=None, kind=Hesitant, **options):
    """What the report says after two epochs whose values were compared."""
    driver = driver or StandIn()

    def adapt():
        made = kind(ds, driver, StandInNvcomp(driver))
        made.load_library = load_library or made.load_library
        return made

    expected = {k: v for k, v in options.items() if k != "on_error"}
    with Loader(settle_for(ds, batch_size, **options), adapt) as loader:
        compare(loader, ds, batch_size, **expected)
        assert driver.faults == []
        return loader.report().way


BEFORE = "through pinned memory to stand-in: batches are made on the CPU"


def test_a_device_that_is_slower_is_not_used(tmp_path):
    way = way_of(images(tmp_path, 80))

    assert f"{BEFORE}, since inflating them on the GPU is no faster (about" in way


def test_without_nvcomp_the_cpu_inflates(tmp_path):
    try:
        load_nvcomp()
    except Refused:
        pass
    else:
        pytest.skip("nvCOMP is installed")

    way = way_of(images(tmp_path, 40), load_library=load_nvcomp)

    assert f"{BEFORE}, since nvCOMP is not installed: pip install 'ndfeed[nvcomp]'" in way


def test_an_nvcomp_that_wants_another_alignment_is_not_used(tmp_path):
    class Demanding(StandInNvcomp):
        alignment = 32

    driver = StandIn()
    way = way_of(images(tmp_path, 40), driver=driver, load_library=lambda: Demanding(driver))

    assert f"{BEFORE}, since nvCOMP wants streams at multiples of 32 bytes" in way


def test_a_driver_that_refuses_changes_the_way_alone(tmp_path):
    driver = StandIn()

    class Refusing(StandInNvcomp):
        room = staticmethod(refuse)

    way = way_of(images(tmp_path, 40), driver=driver, load_library=lambda: Refusing(driver))

    assert f"{BEFORE}, since refused" in way


def test_an_nvcomp_that_decodes_wrongly_is_not_used(tmp_path):
    driver = StandIn()
    library = StandInNvcomp(driver, spoiling("statuses", 1))

    way = way_of(images(tmp_path, 40), driver=driver, load_library=lambda: library)

    assert f"{BEFORE}, since nvCOMP cannot decode some of the files" in way


def test_a_small_dataset_is_not_looked_at(tmp_path):
    class Usual(Hesitant):
        least = 64 << 20

    assert way_of(images(tmp_path, 40), load_library=pytest.fail, kind=Usual) == BEFORE


def test_what_is_not_deflated_is_not_looked_at(tmp_path):
    for number in range(20):
        np.savez(tmp_path / f"{number}", x=image(number))
    ds = ndfeed.open(tmp_path, sample="file")

    assert way_of(ds, load_library=pytest.fail) == BEFORE


def test_bad_samples_are_looked_for_on_the_cpu(tmp_path):
    way = way_of(images(tmp_path, 40), on_error="skip")

    assert f"{BEFORE}, since samples that cannot be read are looked for on the CPU" in way


def test_names_that_would_be_mistaken_for_offsets(tmp_path):
    for number in range(20):
        members = deflated("x", image(number)), deflated("x_offsets", np.arange(5))
        (tmp_path / f"{number:02}.npz").write_bytes(archive(*members))

    way = way_of(ndfeed.open(tmp_path, sample="file"))

    assert f"{BEFORE}, since a field has the name of another with _offsets" in way


def test_files_that_cannot_be_read_are_named_in_their_batch(tmp_path):
    """Not when the loader is made, though the comparison came upon them."""
    images(tmp_path, 40)
    entry = deflated("x", image(39))
    bad = Entry("x.npy", entry.data, 8, size=entry.size, crc=entry.crc ^ 1)
    (tmp_path / "0039.npz").write_bytes(archive(bad, deflated("y", np.int64(39))))
    ds = ndfeed.open(tmp_path, sample="file")
    driver = StandIn()
    adapt = lambda: Hesitant(ds, driver, StandInNvcomp(driver))  # noqa: E731
    with Loader(settle_for(ds, 13), adapt) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(ndfeed.FormatError, match=r"0039\.npz"):
            next(batches)
        assert f"{BEFORE}, since some of the files cannot be read" in loader.report().way
