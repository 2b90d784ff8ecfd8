"""A small convolutional network on images: a base with its own model, loss and batches.

Unit:   images
"""

import torch
import torch.nn.functional as F
from torch import nn

from Utils.run import Run, run_script


class ConvNet(nn.Module):
    def __init__(self, classes=10, width=32):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(3)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images):  # (B, 3, 32, 32)
        x = self.stem(images)
        for block in self.blocks:
            x = F.max_pool2d(x + block(x), 2)
        return self.head(x.mean(dim=(2, 3)))  # (B, classes)


class Pictures(torch.utils.data.Dataset):
    """Noise around one picture per class, in place of a download."""

    def __init__(self, count=1024, classes=10):
        random = torch.Generator().manual_seed(0)
        means = torch.rand(classes, 3, 32, 32, generator=random)
        self.labels = torch.randint(classes, (count,), generator=random)
        self.images = means[self.labels] + torch.randn(count, 3, 32, 32, generator=random) / 4

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


def main(args):
    torch.manual_seed(args.seed)
    loader = torch.utils.data.DataLoader(Pictures(), batch_size=64, shuffle=True, drop_last=True)
    net = ConvNet().to(args.device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    with Run(args, net, optimizer) as run:
        for batch in run.steps(loader):
            images = batch["image"].to(args.device)
            labels = batch["label"].to(args.device)
            optimizer.zero_grad()
            scores = net(images)
            loss = criterion(scores, labels)
            loss.backward()
            optimizer.step()
            run.log(loss.item())


if __name__ == "__main__":
    run_script(main, __doc__)
