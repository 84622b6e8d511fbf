"""The import path of KJ600, whose users find tensorprobe's TrainerMon here."""
