from mixreg import calibration as calibration
from mixreg import losses as losses
from mixreg import risk as risk
from mixreg.losses.mixed_loss import mixed_loss as mixed_loss
from mixreg.losses.mixed_targets import MixedTargets as MixedTargets
from mixreg.methods.adaptive import AdaptiveMixup as AdaptiveMixup
from mixreg.methods.approximate import ApproximateMixup as ApproximateMixup
from mixreg.methods.choice import Choice as Choice
from mixreg.methods.cutmix import CutMix as CutMix
from mixreg.methods.gaussian import GaussianMixup as GaussianMixup
from mixreg.methods.manifold import ManifoldMixup as ManifoldMixup
from mixreg.methods.mixup import Mixup as Mixup
from mixreg.methods.mixupe import MixupE as MixupE
from mixreg.methods.partial import PartialMixup as PartialMixup
from mixreg.methods.partners import SimilarTargets as SimilarTargets
from mixreg.methods.regmixup import RegMixup as RegMixup
from mixreg.methods.scaled import ScaledMixup as ScaledMixup
from mixreg.prediction.hidden import RescaledManifold as RescaledManifold
from mixreg.prediction.rescaled import Rescaled as Rescaled
from mixreg.prediction.rescaled import RescaledCutMix as RescaledCutMix
from mixreg.prediction.rule import Rule as Rule
from mixreg.regularisers.parseval import Parseval as Parseval
from mixreg.theory.moments import DataMoments as DataMoments
from mixreg.theory.perturbation import Perturbation as Perturbation
from mixreg.theory.smoothing import smooth_labels as smooth_labels
from mixreg.theory.theta import Theta as Theta
from mixreg.training.finished import FinishedRun as FinishedRun
from mixreg.training.finished import load as load
from mixreg.training.terms_monitor import TermsMonitor as TermsMonitor

__version__: str
__all__: list[str]
