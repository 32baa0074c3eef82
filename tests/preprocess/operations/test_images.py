import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from PIL import Image, ImageCms
from pydantic import ValidationError

from dataplane.errors import InputError
from preprocess.operations import ResizeImages
from tests.preprocess.operations.cuts import CUTS, assert_same_however_cut, run


def encoded(size=(64, 48), mode="RGB", form="png", **options):
    pixels = np.linspace(0, 255, size[0] * size[1] * 4).reshape(size[1], size[0], 4).astype(np.uint8)
    image = Image.fromarray(pixels, "RGBA") if mode == "RGBA" else Image.fromarray(pixels[..., :3], "RGB").convert(mode)
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return sink.getvalue()


def batch_of(*images):
    return pa.record_batch({"id": range(len(images)), "image": pa.array(images, pa.binary())})


def made(data, **options):
    table, drops = run(ResizeImages(**options), batch_of(data))
    assert not drops
    return table.column("image")[0].as_py()


def opened(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"shortest_side": 24}, (32, 24)),
        ({"box": (32, 32)}, (32, 24)),
        ({"box": (16, 48), "shortest_side": 24}, (16, 12)),
        ({"shortest_side": 100}, (64, 48)),
        ({"shortest_side": 96, "upscale": True}, (128, 96)),
        ({"box": (1, 1)}, (1, 1)),
        ({}, (64, 48)),
    ],
)
@pytest.mark.parametrize("form", ["jpeg", "webp", "png"])
def test_an_image_gets_the_size_and_the_format(options, size, form):
    image = opened(made(encoded(), format=form, **options))

    assert (image.size, image.format.lower()) == (size, form)


def test_an_image_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    data = encoded((64, 48), form="jpeg", exif=exif.tobytes())

    image = opened(made(data, shortest_side=24))

    assert image.size == (24, 32)
    assert image.getexif().get(0x0112, 1) == 1
    assert opened(made(data)).size == (48, 64)


def test_what_would_not_shrink_is_kept_as_it_is():
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8))
    files = {}
    for quality in (20, 95):
        sink = io.BytesIO()
        noise.save(sink, "jpeg", quality=quality)
        files[quality] = sink.getvalue()

    assert made(files[20], quality=95) == files[20]
    assert len(made(files[95], quality=20)) < len(files[95])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "L", "CMYK"])
@pytest.mark.parametrize("form", ["jpeg", "webp", "png"])
def test_every_mode_of_pixels_becomes_every_format(mode, form):
    source = encoded(mode=mode, form="tiff" if mode == "CMYK" else "png")
    if mode == "CMYK" and form == "png":
        with pytest.raises(InputError, match="cannot be decoded"):
            made(source, format=form, shortest_side=24)
        return

    assert opened(made(source, format=form, shortest_side=24)).size == (32, 24)


def test_a_colour_profile_is_kept():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()

    assert opened(made(encoded(icc_profile=profile), format="jpeg", shortest_side=24)).info["icc_profile"] == profile


def bomb():
    return encoded((2000, 1000), mode="1")


def animated():
    sink = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(sink, "gif", save_all=True, append_images=frames[1:])
    return sink.getvalue()


def deep():
    sink = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)).save(sink, "png")
    return sink.getvalue()


REFUSED = {
    "nothing": (b"", "broken image", "cannot be decoded"),
    "no image": (b"no image", "broken image", "cannot be decoded"),
    "cut": (encoded(form="jpeg")[:-300], "broken image", "cannot be decoded"),
    "bomb": (bomb(), "image of too many pixels", "has 2000 x 1000 pixels, more than max_pixels=1000000"),
    "animated": (animated(), "image that the format cannot hold", "has 2 frames"),
    "deep": (deep(), "image that the format cannot hold", "pixels of mode I;16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_image_fails_or_is_dropped_with_its_reason(name):
    data, reason, message = REFUSED[name]
    batch = batch_of(encoded(), data, None, encoded())
    options = {"format": "jpeg", "max_pixels": 1_000_000}

    with pytest.raises(InputError, match=f"images: column 'image' in row 1 of the batch: .*{message}"):
        run(ResizeImages(**options), batch)
    table, drops = run(ResizeImages(**options, on_error="drop"), batch)

    assert table.column("id").to_pylist() == [0, 2, 3]
    assert table.column("image")[1].as_py() is None
    assert drops == {reason: 1}


@settings(max_examples=20)
@given(CUTS)
def test_rows_do_not_depend_on_how_they_are_cut(cuts):
    batch = batch_of(*[encoded((20 + n, 30)) if n % 3 else b"broken" for n in range(9)])

    assert_same_however_cut(ResizeImages(shortest_side=8, format="webp", on_error="drop"), batch, cuts)


def test_real_odd_images_are_made_or_dropped_and_nothing_else(data):
    paths = sorted(path for path in (data / "odd" / "image").iterdir() if path.is_file())
    batch = batch_of(*(path.read_bytes() for path in paths))

    table, drops = run(ResizeImages(format="jpeg", box=(64, 64), on_error="drop"), batch)

    assert table.num_rows + sum(drops.values()) == len(paths)
    assert set(drops) <= {"broken image", "image of too many pixels", "image that the format cannot hold"}
    assert all(max(opened(image.as_py()).size) <= 64 for image in table.column("image"))
    assert table.num_rows > len(paths) // 2


def test_real_photographs_get_smaller(data):
    photographs = [path.read_bytes() for path in sorted((data / "images").rglob("*.jpg"))[:8]]

    table, _ = run(ResizeImages(shortest_side=128, quality=80), batch_of(*photographs))

    images = [image.as_py() for image in table.column("image")]
    assert all(min(opened(image).size) == 128 for image in images)
    assert sum(map(len, images)) < sum(map(len, photographs)) / 2


def test_settings_are_checked():
    with pytest.raises(ValidationError, match="lossless goes with format webp"):
        ResizeImages(lossless=True)
    with pytest.raises(ValueError, match="images: column 'id' is of type int64, not binary"):
        ResizeImages(column="id").bind(batch_of(b"").schema)
