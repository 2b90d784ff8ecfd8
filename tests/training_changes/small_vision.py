"""Train a small network on bright columns in noise, with augmentation in the loader's workers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class Images(Dataset):
    """Images with a bright column for their class; those for training are shifted and noisy."""

    def __init__(self, count, augments):
        self.labels = torch.randint(CLASSES, (count,))
        self.images = torch.randn(count, 3, 16, 16)
        self.images[torch.arange(count), :, :, self.labels] += 0.4
        self.augments = augments

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augments:
            image = image.roll(int(torch.randint(16, ())), dims=1)
            image = image + 0.1 * torch.randn(image.shape)
        return image, self.labels[index]


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
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    train = DataLoader(Images(160, True), batch_size=16, shuffle=True, num_workers=2)
    validation = DataLoader(Images(64, False), batch_size=64)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)

    for epoch in range(args.epochs):
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
