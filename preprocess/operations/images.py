"""Encoded images made smaller: fewer pixels, or fewer bytes for them."""

import io
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from dataplane.errors import InputError, MissingExtraError
from preprocess.operations.base import NO_DROPS, Bound, Drops, Settings
from preprocess.operations.refusals import require_columns

Size = tuple[int, int]
_Pixels = Annotated[int, Field(ge=1, le=1 << 16)]

_BROKEN, _TOO_LARGE, _UNFIT = "broken image", "image of too many pixels", "image that the format cannot hold"
_ORIENTATION = 0x0112  # the EXIF tag
_WITH_FRAMES = {"GIF", "PNG", "WEBP", "TIFF", "AVIF"}  # a JPEG's further pictures are previews and gain maps


class ResizeImages(Settings):
    """Turns upright, shrinks and encodes again the images of a binary column; null stays null.

    An image that needs no other size, is upright, and would not get fewer bytes in its own format is kept as it is.
    Written anew, an image keeps its colour profile and loses other metadata; transparency becomes white in JPEG. The
    bytes depend on the version of Pillow (extra `images`).
    """

    name: ClassVar[str] = "images"
    shorthand: ClassVar[str | None] = "column"

    column: str = "image"
    shortest_side: _Pixels | None = None
    """Pixels of the shorter side."""
    box: tuple[_Pixels, _Pixels] | None = None
    """Width and height that the whole image fits into; with `shortest_side` too, the smaller size of both."""
    upscale: bool = False
    """Whether images that are smaller are made larger."""
    format: Literal["jpeg", "webp", "png"] | None = None
    """None keeps the image's own, which has to be one of these."""
    quality: Annotated[int, Field(ge=1, le=100)] = 85
    """Of JPEG and lossy WebP; PNG is lossless."""
    lossless: bool = False
    """Of WebP."""
    max_pixels: Annotated[int, Field(ge=1)] = 100_000_000
    """Larger images are refused before they are decoded; one takes 3 or 4 bytes a pixel in memory."""
    on_error: Literal["fail", "drop"] = "fail"
    """What happens to images that are broken, too large, animated, or of pixels that the format cannot hold."""

    @model_validator(mode="after")
    def _lossless_is_of_webp(self) -> "ResizeImages":
        if self.lossless and self.format != "webp":
            raise ValueError("lossless goes with format webp; png always is")
        return self

    def depends_on(self) -> Mapping[str, str]:
        _pillow()
        from PIL import __version__, features

        codecs = ", ".join(f"{name} {features.version(name)}" for name in ("jpg", "libjpeg_turbo", "webp", "zlib"))
        return {"pillow": f"{__version__} ({codecs})"}

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns([self.column], schema, self)
        kind = schema.field(self.column).type
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise ValueError(f"{self}: column {self.column!r} is of type {kind}, not binary")
        return _BoundImages(schema, self, _pillow())

    def size_for(self, size: Size) -> Size:
        """What an upright image of this width and height becomes."""
        scales = []
        if self.shortest_side is not None:
            scales.append(self.shortest_side / min(size))
        if self.box is not None:
            scales.append(min(self.box[0] / size[0], self.box[1] / size[1]))
        scale = min(scales, default=1.0)
        if scale > 1 and not self.upscale:
            return size
        return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


class _RefusedError(Exception):
    """An image that is not taken, and the reason to count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class _BoundImages:
    schema: pa.Schema
    _settings: ResizeImages
    _image: Any  # Any: PIL.Image, which is not always there

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        settings = self._settings
        place = batch.schema.get_field_index(settings.column)
        made: list[bytes | None] = []
        kept: list[bool] = []
        drops: dict[str, int] = {}
        for row, result in enumerate(self._results(batch.column(place).to_pylist())):
            kept.append(not isinstance(result, _RefusedError))
            if not isinstance(result, _RefusedError):
                made.append(result)
            elif settings.on_error == "drop":
                drops[result.reason] = drops.get(result.reason, 0) + 1
            else:
                raise InputError(
                    f"{settings}: column {settings.column!r} in row {row} of the batch: {result}; "
                    "`on_error: drop` leaves such rows out and counts them"
                )
        if drops:
            batch = batch.filter(pa.array(kept))
        column = pa.array(made, self.schema.field(place).type)
        return batch.set_column(place, self.schema.field(place), column), drops or NO_DROPS

    def _results(self, images: list[bytes | None]) -> "list[bytes | _RefusedError | None]":
        """What each image becomes; Pillow releases the interpreter lock, so all threads of this process have work."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow about metadata, which is not kept
            with ThreadPoolExecutor(pa.cpu_count()) as pool:
                return list(pool.map(self._result, images))

    def _result(self, data: bytes | None) -> "bytes | _RefusedError | None":
        try:
            return None if data is None else self._encoded(data)
        except _RefusedError as refusal:
            return refusal
        except Exception as error:  # a damaged file makes Pillow raise anything
            return _RefusedError(_BROKEN, f"cannot be decoded ({type(error).__name__}: {error})")

    def _encoded(self, data: bytes) -> bytes:
        settings = self._settings
        image = self._image.open(io.BytesIO(data))
        own = "jpeg" if image.format in ("JPEG", "MPO") else str(image.format).lower()
        if image.width * image.height > settings.max_pixels:
            raise _RefusedError(
                _TOO_LARGE, f"has {image.width} x {image.height} pixels, more than max_pixels={settings.max_pixels}"
            )
        if image.format in _WITH_FRAMES and getattr(image, "n_frames", 1) > 1:
            raise _RefusedError(_UNFIT, f"has {image.n_frames} frames; an animation cannot be made one image")
        target = settings.format or own
        if target not in ("jpeg", "webp", "png"):
            raise _RefusedError(_UNFIT, f"is a {image.format} file; say with `format` what it should become")
        orientation = image.getexif().get(_ORIENTATION, 1)
        turned = orientation in (5, 6, 7, 8)
        width, height = settings.size_for(image.size[::-1] if turned else image.size)
        resized = (width, height) != (image.size[::-1] if turned else image.size)
        made = self._saved(self._pixels(image, (width, height), turned=turned, resized=resized), target, image.info)
        as_it_is = not resized and orientation == 1 and target == own and len(made) >= len(data)
        return data if as_it_is else made

    def _pixels(self, image: Any, size: Size, *, turned: bool, resized: bool) -> Any:  # Any: images of PIL
        """Upright and of the size."""
        from PIL import ImageOps

        if resized:
            # JPEG can be decoded to a half, a quarter or an eighth at once; twice the size wanted loses nothing seen.
            width, height = size[::-1] if turned else size
            image.draft(None, (2 * width, 2 * height))
        upright = ImageOps.exif_transpose(image)
        if not resized or upright.size == size:
            upright.load()
            return upright
        if upright.mode == "P":
            upright = upright.convert("RGBA" if "transparency" in upright.info else "RGB")
        elif upright.mode == "1":
            upright = upright.convert("L")
        return upright.resize(size, self._image.Resampling.LANCZOS)

    def _saved(self, image: Any, target: str, info: Mapping[str, Any]) -> bytes:  # Any: an image of PIL, its metadata
        settings = self._settings
        deep = image.mode.startswith(("I", "F"))
        if target != "png" and deep:
            raise _RefusedError(_UNFIT, f"has pixels of mode {image.mode}, which {target} cannot hold")
        if target == "jpeg" and image.mode not in ("L", "RGB", "CMYK"):
            image = self._flattened(image)
        if target == "webp" and image.mode not in ("RGB", "RGBA"):
            image = image.convert("RGBA" if self._is_transparent(image) else "RGB")
        options_of: dict[str, dict[str, Any]] = {  # Any: of Pillow's encoders
            "jpeg": {"quality": settings.quality, "optimize": True},
            "webp": {"quality": settings.quality, "lossless": settings.lossless, "method": 4},
            "png": {"optimize": True},
        }
        options = options_of[target]
        if profile := info.get("icc_profile"):
            options["icc_profile"] = profile
        sink = io.BytesIO()
        image.save(sink, format=target, **options)
        return sink.getvalue()

    def _flattened(self, image: Any) -> Any:  # Any: images of PIL
        if not self._is_transparent(image):
            return image.convert("RGB")
        rgba = image.convert("RGBA")
        white = self._image.new("RGBA", image.size, "white")
        return self._image.alpha_composite(white, rgba).convert("RGB")

    def _is_transparent(self, image: Any) -> bool:  # Any: an image of PIL
        return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _pillow() -> Any:  # Any: PIL.Image, which is not always there
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("images need the extra: pip install 'dataplane[images]'") from None
    return Image
