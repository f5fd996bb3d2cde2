"""The words of the stories: names, animals, objects, places, foods, weather.

Every list is a tuple in a fixed order, because an index into it is part of the corpus: adding,
dropping or moving an entry changes the text of the stories (see `relation.data.stories`).

Three rules keep the grammar of the templates simple: no name ends in s (so that 's makes every
possessive), every object is one countable thing, and every treat is a mass noun ("some ...").
"""

from typing import NamedTuple


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


class Weather(NamedTuple):
    """A day: its season, the adjective for it, and a clause that shows it."""

    season: str
    adjective: str
    sky: str


class Tool(NamedTuple):
    """Something useful that can be lent, and three good deeds it serves for (past tense)."""

    name: str
    deeds: tuple[str, str, str]


class Event(NamedTuple):
    """A turn of the year that two friends wait for, as they say it and as it happens."""

    ahead: str
    happened: str


GIRLS = _words("""
Ada Alma Amina Anna Bea Bella Bonnie Cara Celia Clara Cora Daisy Dora Edith Ella Elsie Emma Esme
Eva Faye Flora Freya Gemma Greta Hazel Heidi Helen Ida Ingrid Isla Ivy Jenny Kate Kira Lena Lily
Lottie Lucy Luna Mabel Maya Mia Mina Molly Nell Nina Nora Opal Penny Priya Rosa Ruby Sadie Sally
Sara Sofia Stella Susan Tara Tess Tilda Vera Willa Yara Zoe
""")
BOYS = _words("""
Adam Alfie Amir Arlo Arthur Ben Bruno Caleb Carl Colin Dan Dario David Dylan Eli Emil Ethan Ezra
Felix Finn Fred George Harry Henry Hugo Ivan Jack Jacob Jamal Jasper Joe Jonah Kai Karim Kit Leo
Levi Liam Luca Marco Martin Max Milo Mohan Nat Ned Noah Oliver Omar Oscar Otto Owen Paul Peter
Ralph Remy Rory Sam Samir Simon Stefan Ted Theo Tim Toby Tom Victor Walter Yusuf Zack
""")
ANIMAL_NAMES = _words("""
Acorn Biscuit Bobbin Bracken Bramble Button Cinder Clover Comet Cricket Dandy Ember Fern Fidget
Flick Gingersnap Hopper Jingle Juniper Kipper Maple Muffin Nettle Nibble Nutmeg Pebble Pepper
Pickle Pippin Pudding Quill Rusty Saffron Scamper Skipper Snowdrop Sorrel Sprout Tansy Teasel
Thimble Thistle Truffle Tumble Tweed Velvet Waffle Whisker Wobble Ziggy
""")
# Heroes and their friends have paws where children have hands, so no bird and no hoof here.
PAWED = _phrases("""
mouse, rabbit, hedgehog, fox, squirrel, badger, bear cub, otter, kitten, puppy, mole, beaver,
raccoon, hamster, dormouse, lion cub, tiger cub, wolf cub, panda, koala, chipmunk, ferret, meerkat,
lemur
""")
NEIGHBOUR_KINDS = _phrases("""
goat, owl, toad, heron, donkey, goose, crow, snail, turtle, pony, sheep, hen, robin, duck, magpie,
crab, seal, cow, frog, pigeon, camel, swan, parrot, stork, lizard, peacock, woodpecker, bat
""")
PET_KINDS = _phrases("""
duckling, lamb, piglet, tortoise, chick, gosling, puppy, kitten, parrot, young goat,
young donkey, guinea pig, lizard
""")

GRANDMOTHERLY = _phrases("""
Grandma Rose, Grandma Pearl, Grandma Hetty, Granny Maud, Granny Ruth, Aunt Polly, Aunt Matilda,
Aunt Winifred, Aunt Josephine, Great-Aunt Ottilie, Mrs. Plum, Mrs. Barley, Mrs. Fairweather,
Mrs. Underhill, Miss Lark, Miss Appleby, Miss Thorn, Doctor Marigold, Captain Storm, Old Nan
""")
GRANDFATHERLY = _phrases("""
Grandpa Joseph, Grandpa Albert, Grandpa Ernest, Grandad Bill, Grandad Ambrose, Uncle Bernard,
Uncle Raymond, Uncle Fergal, Uncle Leopold, Great-Uncle Magnar, Mr. Finch, Mr. Penhallow,
Mr. Oakley, Mr. Hopkin, Mr. Tumbledown, Doctor Quince, Captain Reed, Farmer Hobb, Old Gideon Tiller,
Professor Wick
""")
ELDER_CLAUSES = _phrases("""
who kept bees, who mended clocks, who baked bread for the whole village, who had once been a sailor,
who knew every bird by its song, who lived next door, who was good at riddles,
who wore a straw hat in every weather, who ran the little post office, who told the best stories,
who drove the milk cart, who played the fiddle at weddings, who carved animals out of wood,
who could walk on stilts, who grew giant pumpkins, who never hurried, who rang the church bells,
who lived in the lighthouse, who sang while working, who repaired old umbrellas,
who had been to seven countries, who collected maps, who painted signs for all the shops,
who always had time for a chat, who snored like a bear, who was kind to everyone
""")
PASSERS = _phrases("""
postman, farmer, fisherman, milkmaid, chimney sweep, carpenter, gardener, tailor, blacksmith,
shepherd, clown, soldier, piano teacher, painter, baker, miller, ferryman, beekeeper, juggler,
potter, librarian, travelling doctor, umbrella maker, knife grinder
""")

TRAITS = _words("""
curious brave shy cheerful clever quiet lively gentle stubborn patient honest dreamy careful merry
restless friendly polite thoughtful eager adventurous untidy inventive bold sensible talkative
hopeful playful helpful daring bashful plucky forgetful generous impatient sleepy
""")
COLOURS = _words("""
red blue green yellow purple orange pink white brown silver golden turquoise scarlet violet
""")
OBJECTS = _phrases("""
kite, drum, button, whistle, marble, scarf, teapot, spoon, ribbon, bell, ball, notebook, kettle,
mitten, hat, feather, key, ring, mirror, compass, flute, trumpet, puppet, spinning top, wooden
horse, music box, paintbrush, pocket watch, jug, cup, purse, pinwheel, rattle, bracelet, pencil,
yo-yo, eggcup, abacus, apron, inkwell, envelope, hourglass, medal, necklace, snow globe,
candlestick, rag doll, tambourine, telescope, thimble, toy soldier, toy train, hand bell, lunch box,
brooch, locket, skipping rope, magnet, jigsaw, accordion
""")
TREATS = _phrases("""
plum cake, apple pie, gingerbread, rice pudding, lemon tart, walnut bread, carrot cake, cherry pie,
peach cobbler, corn bread, pear crumble, honey cake, blueberry pie, almond cake, raisin bread,
chocolate pudding, apricot strudel, coconut cake, rhubarb crumble, banana bread, marzipan,
poppy seed cake, raspberry sponge, oat cake, cinnamon bread, orange cake, strawberry tart,
pumpkin pie, hazelnut cake, buttered toast, shortbread, toffee pudding
""")
INGREDIENTS = _phrases("""
two eggs, a cup of milk, a jar of honey, a pinch of salt, a bag of flour, a pat of butter, a juicy
lemon, a handful of nuts, a sprig of mint, three ripe pears, a pot of cream, a sack of oats, a bag
of raisins, a slice of ginger, a stick of cinnamon, a bowl of cherries, five dried figs, a ripe
melon, a tub of yogurt, a spoonful of yeast, a box of sugar, a bunch of grapes, a bottle of syrup,
four plums, a piece of chocolate, a basket of berries, a vanilla pod, a packet of almonds
""")

# Each of these is a preposition and, from "the" on, the place itself.
HIDING_PLACES = _phrases("""
under the crooked oak, behind the windmill, beside the stone well, under the wooden bridge, inside
the hollow log, behind the garden shed, near the mossy rock, beneath the willow tree, below the bell
tower, beside the old sundial, inside the empty barn, under the apple cart, behind the waterfall,
near the lighthouse, under the bakery steps, beside the duck pond, behind the haystack, inside the
greenhouse, under the rose bush, at the end of the pier, next to the beehives, behind the woodpile,
under the park bench, beneath the chestnut tree, inside the broken boat, near the iron fountain,
behind the chicken house, below the castle wall, under the market stairs, beside the scarecrow
""")
SITES = _phrases("""
at the harbour, in the woods, by the river, at the market, in the valley, on the hill, in the park,
in the orchard, by the lake, at the farm, on the beach, in the meadow, at the mill,
in the village square, on the moor, at the railway station, by the canal, in the old quarry,
on the common, at the edge of the marsh, in the castle garden, on the riverbank
""")
WEATHERS = (
    Weather("spring", "bright", "the hedges were full of birdsong"),
    Weather("spring", "rainy", "rain pattered on the roofs"),
    Weather("spring", "breezy", "petals blew across the lane"),
    Weather("spring", "mild", "lambs were calling from the hill"),
    Weather("summer", "sunny", "the sun stood high over the fields"),
    Weather("summer", "hot", "even the bees were too lazy to hum"),
    Weather("summer", "warm", "swallows dipped over the water"),
    Weather("summer", "dusty", "the dust danced on the road"),
    Weather("summer", "stormy", "thunder grumbled behind the hills"),
    Weather("autumn", "windy", "leaves whirled down the lane"),
    Weather("autumn", "foggy", "the fog lay thick on the fields"),
    Weather("autumn", "misty", "spiders had hung their webs on every gate"),
    Weather("autumn", "crisp", "geese flew south in a long line"),
    Weather("winter", "frosty", "every twig sparkled with frost"),
    Weather("winter", "snowy", "snow lay deep on the window sills"),
    Weather("winter", "icy", "icicles hung from the gutters"),
    Weather("winter", "chilly", "smoke rose straight from the chimneys"),
)

NUMBERS = _words("three four five six seven eight nine ten")
PASSWORDS = _words("""
marmalade rhinoceros cucumber bumblebee pantaloon porridge umbrella dragonfly pineapple moonbeam
cauliflower bagpipe crocodile tangerine wigwam parsnip hippopotamus lollipop mushroom avalanche
kangaroo doorknob sausage trombone zigzag buttermilk caterpillar elderberry spaghetti tornado
""")
MESSAGES = _phrases("""
the kettle is mended, the ducks have come home, there will be dancing tonight, the plums are ripe,
the baby has a first tooth, the roof does not leak any more, the goat is in the kitchen again,
the ferry sails at noon, the old clock is ticking again, the bridge is safe to cross,
supper will be late on Sunday, the snow has melted on the pass, the well is full again,
the cat has five kittens, the wedding is on Friday, the eggs have hatched, the fair opens tomorrow,
the fiddle has a new string, nobody is angry any longer, the swing has been repaired,
the wolves have left the valley, there is room for one more at the table, the spare key is lost,
the harvest supper is on Tuesday
""")
DEADLINES = _phrases("""
before sunset, before the church bell rings, before the lamps are lit, before the cows come home,
before supper, before the clock strikes six, before the first star is out, before the bakery shuts,
before the tide comes in, before the market closes, before the owls wake up, before bedtime
""")
EVENTS = (
    Event("the swallows come back", "the swallows came back"),
    Event("the apples are ripe", "the apples were ripe"),
    Event("the fair comes to town", "the fair came to town"),
    Event("the ice melts on the lake", "the ice melted on the lake"),
    Event("the storks build their nest", "the storks built their nest"),
    Event("the last leaf drops", "the last leaf dropped"),
    Event("the new bridge is finished", "the new bridge was finished"),
    Event("the lambs are born", "the lambs were born"),
    Event("the harvest is in", "the harvest was in"),
    Event("the moon is full again", "the moon was full again"),
    Event("the circus returns", "the circus returned"),
    Event("the first snow falls", "the first snow fell"),
)
TOOLS = (
    Tool(
        "bucket",
        (
            "carried water to a thirsty mule",
            "bailed out a leaky rowing boat",
            "gathered fallen pears for a jam maker",
        ),
    ),
    Tool(
        "rope",
        (
            "pulled a cart out of the mud",
            "tied down a flapping tent",
            "hung up a swing for the little ones",
        ),
    ),
    Tool(
        "ladder",
        (
            "fetched a frightened cat from a roof",
            "put a fallen nest back in its tree",
            "straightened a crooked shop sign",
        ),
    ),
    Tool(
        "broom",
        (
            "swept the school steps",
            "chased a cheeky rooster out of a shop",
            "brushed the cobwebs from a dusty window",
        ),
    ),
    Tool(
        "basket",
        (
            "collected a hundred spilled potatoes",
            "rocked a crying baby to sleep",
            "carried seven lost chicks back to their nest",
        ),
    ),
    Tool(
        "lantern",
        (
            "lit the cellar stairs for a nervous cook",
            "searched a dark attic for a lost slipper",
            "showed a tired traveller the way through the tunnel",
        ),
    ),
    Tool(
        "shovel",
        (
            "dug a ditch for the rainwater",
            "cleared the path to the school gate",
            "freed a tortoise from the sand",
        ),
    ),
    Tool(
        "wheelbarrow",
        (
            "moved a heap of bricks for a mason",
            "gave a lame dog a ride home",
            "brought a heavy trunk to the station",
        ),
    ),
    Tool(
        "blanket",
        (
            "kept a shivering foal warm",
            "made a tent for two tired twins",
            "caught a baby bird that fell from a branch",
        ),
    ),
    Tool(
        "umbrella",
        (
            "kept the wedding cake dry",
            "hooked a lost hat out of the pond",
            "stopped a runaway ball",
        ),
    ),
    Tool(
        "hammer",
        (
            "mended a wobbly stool",
            "nailed a new plank on the bridge",
            "cracked a whole bag of walnuts for a hungry family",
        ),
    ),
    Tool(
        "net",
        (
            "fished a doll out of the fountain",
            "caught a runaway parrot without hurting it",
            "carried six melons up the hill",
        ),
    ),
)
PET_TAGS = _words("ribbon collar bell scarf bow kerchief tassel")
FLOWERS = _words("""
tulip poppy daisy lily iris rose pansy peony crocus foxglove dahlia hollyhock snapdragon aster
anemone carnation begonia orchid geranium zinnia petunia hyacinth
""")
BOAT_FIRST = _words("""
Merry Brave Flying Dancing Lucky Little Jolly Swift Singing Hungry Wandering Proud Gentle Stormy
Laughing Gallant
""")
BOAT_SECOND = _words("""
Otter Duchess Herring Dolphin Pelican Sparrow Turnip Walrus Mermaid Admiral Dumpling Penguin
Grasshopper Lobster Traveller Sardine
""")
RIDES = _words("cart train ferry wagon coach bus sleigh steamboat")
