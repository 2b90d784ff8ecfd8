"""Train a small network on bright columns in noise, with augmentation in the loader's workers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

CLASSES = 10


def augmented(samples):
    """Return a batch whose images are shifted and noisy."""
    images, labels = default_collate(samples)
    images = images.roll(int(torch.randint(16, ())), dims=2)
    images = images + 0.1 * torch.randn(images.shape)
    return images, labels


def network(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d((4, 1)),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(width * 64, CLASSES),
    )


def validate(model, loader, device):
    model.eval()
    with torch.no_grad():
        hits = [(model(x.to(device)).argmax(1) == y.to(device)).float() for x, y in loader]
    model.train()
    return torch.cat(hits).mean().item()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (224,))
    images = torch.randn(224, 3, 16, 16)
    images[torch.arange(224), :, :, labels] += 0.4
    training = TensorDataset(images[:160], labels[:160])
    held_out = TensorDataset(images[160:], labels[160:])
    train = DataLoader(training, batch_size=16, shuffle=True, num_workers=2, collate_fn=augmented)
    validation = DataLoader(held_out, batch_size=32)

    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)

    for epoch in range(2):
        for images, labels in train:
            logits = model(images.to(device))
            loss = F.cross_entropy(logits, labels.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        accuracy = validate(model, validation, device)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
