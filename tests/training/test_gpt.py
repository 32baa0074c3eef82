"""The model looks only where it may, and the loss counts only what it should."""

import math

import pytest
import torch

from dataplane import Ragged
from training import GPT, GPTConfig
from training.models.gpt import document_mask
from training.objective import NextToken

CONFIG = GPTConfig(vocab_size=11, context=16, num_layers=2, num_heads=2, width=16)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = GPT(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)  # away from the start, where all logits look alike
    return model


def random_tokens(*shape):
    return torch.randint(0, CONFIG.vocab_size, shape, generator=torch.Generator().manual_seed(1))


def test_a_new_model_knows_nothing():
    torch.manual_seed(0)
    batch = {"tokens": random_tokens(4, 16).to(torch.int32), "length": torch.full((4,), 16, dtype=torch.int32)}
    objective = NextToken()

    mean = objective.loss(GPT(CONFIG), batch) / objective.count(batch)

    assert mean.item() == pytest.approx(math.log(CONFIG.vocab_size), abs=0.05)


def test_no_position_sees_a_later_one(model):
    tokens = random_tokens(1, 16)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % CONFIG.vocab_size
    before, after = model(tokens), model(changed)

    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_a_masked_document_reads_as_if_it_were_alone(model):
    tokens = random_tokens(2, 16)
    mask = document_mask(torch.tensor([0, 5, 0, 11], dtype=torch.int32), torch.tensor([0, 2, 4]), length=16)
    packed = model(tokens, mask)

    for row, start, stop in [(0, 0, 5), (0, 5, 16), (1, 0, 11), (1, 11, 16)]:
        alone = model(tokens[row : row + 1, start:stop])
        torch.testing.assert_close(packed[row : row + 1, start:stop], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", [[16, 16], [9, 3], [1, 0], [16, 2]])
def test_padding_is_neither_counted_nor_seen_in_the_loss(model, lengths):
    tokens, noise = random_tokens(2, 16), random_tokens(2, 16).flip(0)
    length = torch.tensor(lengths, dtype=torch.int32)
    padded = torch.where(torch.arange(16) < length[:, None], tokens, noise)
    objective = NextToken()
    of_rows = [
        objective.loss(model, {"tokens": tokens[row : row + 1, :size], "length": length[row : row + 1]}).item()
        for row, size in enumerate(lengths)
        if size > 1
    ]
    batch = {"tokens": padded.to(torch.uint16), "length": length}

    assert objective.count(batch) == sum(max(size - 1, 0) for size in lengths)
    assert objective.loss(model, batch).item() == pytest.approx(sum(of_rows), rel=1e-4)


def test_masked_documents_come_from_the_batch(model):
    starts = Ragged(torch.tensor([0, 4, 15], dtype=torch.int32), torch.tensor([0, 3]))
    batch = {"tokens": random_tokens(1, 16), "length": torch.tensor([16]), "document_starts": starts}
    plain, masked = NextToken(), NextToken(mask_documents=True)

    assert masked.columns == [*plain.columns, "document_starts"]
    assert masked.loss(model, batch) != plain.loss(model, batch)


def test_sizes_that_do_not_fit_are_refused(model):
    with pytest.raises(ValueError, match="rows of 17 tokens exceed the model's context of 16"):
        model(random_tokens(1, 17))
    with pytest.raises(ValueError, match="width must be a multiple of 2"):
        GPTConfig(vocab_size=11, context=16, num_layers=2, num_heads=3, width=16)
