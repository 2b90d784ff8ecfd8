"""Train a small residual network on images made of noise, and validate it after each epoch."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm(self.convolution(x)))


class ResNet(nn.Module):
    def __init__(self, width=16, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(Block(width), nn.MaxPool2d(2), Block(width))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    images = torch.randn(1088, 3, 16, 16)
    labels = torch.randint(10, (1088,))
    train, validation = random_split(TensorDataset(images, labels), [1024, 64])
    model = ResNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        for x, y in DataLoader(train, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(validation, batch_size=64):
                predicted = model(x.to(device)).argmax(1)
                accuracy = (predicted == y.to(device)).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
