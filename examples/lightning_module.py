"""Train a classifier by Lightning's Trainer."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(1024, 32), torch.randint(10, (1024,)))
    trainer = lightning.Trainer(max_epochs=100, logger=False, enable_checkpointing=False)
    model = Classifier()
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))
