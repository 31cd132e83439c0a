"""Lines in many scripts, for us and for the reference tokenizers (`bench/text_references.py`)."""

import re
import string

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

ODD = ("", " ", "!?.", "a", "▁", "▁▁ a ▁", "I'll we've it's 'S", "<|startoftext|> <|endoftext|> end", "dog……cat…")


def lines() -> list[str]:
    """The sentences, and lines with little in them."""
    return [*SENTENCES, *ODD]


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
