"""Lines in many scripts, made from a seed: the same here and where the reference tokenizers ran
(`bench/text_references.py`).
"""

import re
import string
import unicodedata
from typing import Literal

import numpy as np

SENTENCES = """
a photo of a small dog that sleeps beside the river
a picture of the old fire truck in front of the town hall
two red apples, three green pears and 15 plums on a wooden table
an X-ray of the left hand; it's not broken, they've said
the doctor's notes from 1987 (page 12) don't say what we'd expect
Ein Bild der großen Brücke über den Fluß im Nebel
Zwei Mädchen essen Äpfel und Käse auf der Straße
une photo d'un chat noir près de la fenêtre ouverte
l'élève a déjà mangé sa crème brûlée à Noël
una foto de un niño con una piñata en la montaña
o avião pousou às três horas da manhã em São Paulo
il cane è più veloce della città perché corre
zdjęcie żółtej łódki na jeziorze późną jesienią
příliš malý kůň pije vodu z čisté řeky
İstanbul'da küçük bir çocuğun ığdır ağacı
một bức ảnh của con mèo nhỏ trên ghế đỏ
mynd af litlum hundi við ána, þessi er æði góður
kuva pienestä koirasta joen lähellä yöllä
фотография маленькой собаки у реки зимним утром
їжак і ґава їдять яблука біля хати
слика на куче до ѓаволот и љубов
μια φωτογραφία ενός μικρού σκύλου δίπλα στον ποταμό, ΌΛΟΣ ΚΑΛΌΣ
תמונה של כלב קטן ליד הנהר בשעת בוקר
صورة كلب صغير بجانب النهر في الصباح
عکسی از یک سگ کوچک کنار رودخانه
دریا کے کنارے ایک چھوٹے کتے کی تصویر
नदी के किनारे एक छोटे कुत्ते की तस्वीर
নদীর ধারে একটি ছোট কুকুরের ছবি
ஆற்றின் அருகே ஒரு சிறிய நாயின் படம்
నది పక్కన ఒక చిన్న కుక్క చిత్రం
നദിക്കരയിൽ ഒരു ചെറിയ നായയുടെ ചിത്രം
ภาพถ่ายของสุนัขตัวเล็กข้างแม่น้ำ
ຮູບຖ່າຍຂອງໝານ້ອຍຢູ່ແຄມນ້ຳ
მდინარესთან პატარა ძაღლის სურათი
գետի մոտ փոքրիկ շան լուսանկար
የትንሽ ውሻ ፎቶ ከወንዙ አጠገብ
강가에서 자고 있는 작은 개의 사진
川のそばで眠る小さな犬の写真、カメラで撮った
河边一只小狗的照片，拍摄于二〇二四年
河邊一隻小狗的照片「很可愛」
""".strip().split("\n")

RANGES = (
    (0x20, 0x7E), (0xA0, 0x17F), (0x1CD, 0x233), (0x300, 0x345), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x587),
    (0x5B0, 0x5EA), (0x60C, 0x6D5), (0x901, 0x970), (0x981, 0x9FA), (0xA02, 0xA74), (0xA81, 0xAEF), (0xB82, 0xBF2),
    (0xC01, 0xC6F), (0xD02, 0xD6F), (0xE01, 0xE5B), (0xE81, 0xEDD), (0xF00, 0xFBC), (0x1000, 0x1059), (0x10A0, 0x10F8),
    (0x1100, 0x11F9), (0x1200, 0x137C), (0x13A0, 0x13F4), (0x1780, 0x17DC), (0x1820, 0x1877), (0x1E00, 0x1EF9),
    (0x1F00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x208E), (0x20A0, 0x20B1), (0x2100, 0x214B), (0x2153, 0x2183),
    (0x2190, 0x22FF), (0x2460, 0x24EA), (0x2581, 0x2581), (0x25A0, 0x25FF), (0x2600, 0x26FF), (0x3000, 0x303F),
    (0x3041, 0x309F), (0x30A1, 0x30FE), (0x3131, 0x318E), (0x3200, 0x32FE), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
    (0xF900, 0xFA2D), (0xFB00, 0xFB4F), (0xFB50, 0xFDFB), (0xFE70, 0xFEFC), (0xFF01, 0xFFEE), (0x10300, 0x1031E),
    (0x1D400, 0x1D7FF), (0x20000, 0x20100),
)  # fmt: skip
FORMS: tuple[Literal["NFC", "NFD", "NFKD"], ...] = ("NFC", "NFD", "NFKD")
EMOJI = ("🐶", "🚒", "👩‍🔬", "❤️", "🇫🇷", "1️⃣", "👍🏽")
GLUE = (" ", " ", " ", " ", "  ", "\t", "\u00a0", "\u3000", "-", "_", ", ", ". ", "'", "…", "/", "\u200b", "\n")


def lines(count: int = 1000, seed: int = 0) -> list[str]:
    """Words of the sentences, changed or not, among characters of all scripts that were in Unicode 3.2: later versions
    of Python know no other facts of these.
    """
    random = np.random.RandomState(seed)
    words = [word for sentence in SENTENCES for word in sentence.split()]

    def one(choices: tuple[str, ...] | list[str]) -> str:
        return choices[random.randint(len(choices))]

    def character() -> str:
        while True:
            low, high = RANGES[random.randint(len(RANGES))]
            found = chr(random.randint(low, high + 1))
            if unicodedata.ucd_3_2_0.category(found) not in ("Cn", "Cs", "Co"):
                return found

    def part() -> str:
        kind = random.randint(12)
        if kind < 6:
            return one(words)
        if kind < 9:
            word = one(words)
            form = FORMS[random.randint(3)]
            return unicodedata.normalize(form, (word.upper(), word.title(), word)[random.randint(3)])
        if kind == 9:
            return str(random.randint(10 ** random.randint(1, 7)))
        if kind == 10 and not random.randint(4):
            return one(EMOJI)
        return "".join(character() for _ in range(random.randint(1, 6)))

    found = [
        *SENTENCES,
        "",
        " ",
        "!?.",
        "a",
        "▁",
        "▁▁ a ▁",
        "I'll we've it's 'S",
        "<|startoftext|> <|endoftext|> end",
        "dog……cat…",
    ]
    while len(found) < count:
        found.append("".join(part() + one(GLUE) for _ in range(random.randint(1, 9))))
    return found


def begun(line: str) -> str:
    """The line from its first letter or sign on. If a space is before it, transformers gives SigLIP one token more. The
    model was not trained like that: sentencepiece removes such a space.
    """
    return re.sub(rf"^[\s▁\u200b{re.escape(string.punctuation)}]+", "", line)


def tokens_of(merges: list[str]) -> list[str]:
    """The tokens of a vocabulary of byte pairs, in the order of their numbers: bytes, bytes at the end of a word,
    pairs, and the start and the end of a text.
    """
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(each + "</w>" for each in letters), *(each.replace(" ", "") for each in merges)]
    return [*dict.fromkeys(tokens), "<|startoftext|>", "<|endoftext|>"]
