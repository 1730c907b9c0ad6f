"""Six topics and a sentence of each, which MiniLM tells apart."""

TOPICS = {
    "cooking": "a soup of onions, with bread from the oven",
    "sailing": "the boat turned into the wind at sea",
    "banking": "a loan of money, and its interest",
    "gardening": "soil for plants and flowers in spring",
    "chess": "the queen takes the bishop, and it is mate",
    "football": "a goal in the second half of the match",
}
