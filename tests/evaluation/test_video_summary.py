"""Animated images for TensorBoard, read back from the event files."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.image import metadata as image_metadata

from tfrl.evaluation.video_file import Preview, encode_gif, video_summary, write_summary


def clip(frames, height=8, width=6):
    """Frame t has the red value 10 t."""
    found = np.zeros([frames, height, width, 3], np.uint8)
    found[..., 0] = 10 * np.arange(frames).reshape(-1, 1, 1)
    return found


def opened(gif):
    image = Image.open(io.BytesIO(gif))
    reds = []
    for t in range(image.n_frames):
        image.seek(t)
        reds.append(int(np.asarray(image.convert("RGB"))[0, 0, 0]))
    return image, reds


def test_gif_keeps_frames_and_time():
    image, reds = opened(encode_gif(clip(4), fps=10))
    assert (image.format, image.size, reds) == ("GIF", (6, 8), [0, 10, 20, 30])
    assert image.info["duration"] == 100 and image.info["loop"] == 0
    # 1 / 200 s would be played at 100 ms.
    assert opened(encode_gif(clip(2), fps=200))[0].info["duration"] == 20


def test_a_tf_summary_writer_writes_what_tensorboard_plays(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    write_summary(writer, "clip", clip(3), step=70, fps=20.0)
    write_summary(writer, "clip", list(clip(5)), step=90, fps=20.0)
    writer.close()
    events = event_accumulator.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    assert events.Tags()["tensors"] == ["clip"]
    plugin = events.SummaryMetadata("clip").plugin_data.plugin_name
    assert plugin == image_metadata.PLUGIN_NAME
    found = events.Tensors("clip")
    assert [e.step for e in found] == [70, 90]
    width, height, gif = found[0].tensor_proto.string_val
    assert (width, height) == (b"6", b"8")
    image, reds = opened(gif)
    assert reds == [0, 10, 20] and image.info["duration"] == 50
    assert len(opened(found[1].tensor_proto.string_val[2])[1]) == 5


def test_the_summary_for_a_writer_of_events():
    (value,) = video_summary("v", clip(2), 10).value
    image = value.image
    assert (value.tag, image.width, image.height, image.colorspace) == ("v", 6, 8, 3)
    assert opened(image.encoded_image_string)[1] == [0, 10]


@pytest.mark.parametrize(
    ("frames", "got"),
    [
        (np.zeros([2, 4, 4], np.uint8), "uint8 [2, 4, 4]"),
        (np.zeros([2, 4, 4, 3]), "float64 [2, 4, 4, 3]"),
        (np.zeros([0, 4, 4, 3], np.uint8), "uint8 [0, 4, 4, 3]"),
    ],
)
def test_other_frames_are_refused(frames, got):
    with pytest.raises(ValueError) as caught:
        encode_gif(frames, 10)
    assert str(caught.value) == f"expected uint8 frames [T, H, W, 3], got {got}"


@pytest.mark.parametrize(
    ("count", "every", "reds"),
    [
        (1, 1, [0]),
        (4, 1, [0, 10, 20, 30]),
        (5, 2, [0, 20, 40]),
        (8, 2, [0, 20, 40, 60]),
        (9, 4, [0, 40, 80]),
        (25, 8, [0, 80, 160, 240]),
    ],
)
def test_a_preview_thins_evenly(count, every, reds):
    preview = Preview(max_frames=4)
    for frame in clip(count):
        preview.add(frame)
    assert preview.every == every
    assert preview.frames[:, 0, 0, 0].tolist() == reds


def test_a_preview_shrinks_by_means():
    frame = np.zeros([10, 24, 3], np.uint8)
    frame[::2] = 100
    preview = Preview(max_side=12)  # 24 / 12: every second pixel each way
    preview.add(frame)
    assert preview.frames.shape == (1, 5, 12, 3)
    assert (preview.frames == 50).all()
    untouched = Preview(max_side=24)
    untouched.add(frame)
    np.testing.assert_array_equal(untouched.frames[0], frame)


def test_a_preview_keeps_no_view():
    frame = np.zeros([2, 2, 3], np.uint8)
    preview = Preview()
    preview.add(frame)
    frame[:] = 9  # a renderer may draw into the same array again
    assert preview.frames.max() == 0
