"""Phrases that vary from use to use.

Neither they nor the interludes name a colour, an object or a treat but through slots, so that they
never say by chance what a plot has to remember.
"""

from relation.data.lexicon import TRAITS
from relation.data.tales.notation import phrasebook

PHRASES = phrasebook("""
intro:
Once upon a time there was {a_trait} {kind} named {hero}, who lived {home}.
| {hero} was {a_trait} {kind} who lived {home}.
| {Home} lived {a_trait} {kind} called {hero}.
| There was once {a_trait} {kind} whose name was {hero}. {He} lived with {family} {home}.
| It was {a_weather} morning in {season}, and {sky}. {hero}, {a_trait} {kind}, was wide awake.
| Everyone {at_site} knew {hero}, {a_trait} {kind} with {feature}.
| {hero} woke up early. {Sky}, and the {trait} {kind} jumped out of bed.
| "Is it morning yet?" asked {hero}. {He} was {a_trait} {kind}, and {he} hated to miss anything.
| Not so long ago, {home}, there lived {a_trait} {kind}. {His} name was {hero}.
| Long ago, when {long_ago}, {a_trait} {kind} named {hero} lived {home}.
| If you had come by on that {weather} {season} day, you would have met {hero}, {a_trait} {kind}
  with {feature}.
| {hero} loved {hobby} more than anything. {He} was {a_trait} {kind} who lived {home}.
| This is the story of {hero}, {a_trait} {kind} with {feature}.
| One {season}, when {sky}, {hero} was {years} years old. {He} was {a_trait} {kind}.
| Some are good at {hobby}, and some are good at nothing much. {hero}, {a_trait} {kind}, was good
  at being happy.
| Have you heard of {hero}? {He} was {a_trait} {kind} who lived with {family} {home}.
| {hero} had {feature} and lived {home}. A more {trait} {kind} was hard to find.
| {Sky}, and {home} everybody was still asleep. Only {hero}, {a_trait} {kind}, was up.

home:
in a small house near the sea | at the edge of a pine forest | above a noisy bakery | in a cottage
with a crooked chimney | on the top floor of a tall house | next to a slow wide river | in a
village at the foot of a mountain | at the end of a winding lane | behind the old school | in a
wagon on four wheels | not far from the station | in a house with round windows | on an island no
bigger than a field | in a valley full of sheep | at the corner of Mill Street | beside a lake as
smooth as glass | in a town with a hundred stairs | between two hills

family:
{his} mother and father | {his} mother and two noisy brothers | an aunt and a lazy cat | {his}
father and a very old dog | seven sisters | {his} grandparents | a whole crowd of cousins

feature:
a loud laugh | a great many freckles | a torn pocket | muddy knees | bright eyes | a head full of
plans | a gap between the front teeth | ears that missed nothing | a whistle for every occasion | a
very curly tuft of hair | pockets full of string

hobby:
climbing trees | singing in the rain | drawing maps | collecting snails | baking mud pies |
counting stars | building dams | asking questions | telling jokes | watching trains | folding paper
planes | hide-and-seek | listening to stories | splashing in puddles

long_ago:
trains still ran on steam | letters took a week | the mill still had its sails | nobody locked a
door | the road was only a footpath | bread cost a penny

years:
five | six | seven | eight

soon:
soon | before long | after a while | a little later | by and by | in a little while | not long
after that | some time later

at_last:
at last | in the end | finally | at long last

next_day:
the next morning | the next day | the following day | early the next morning | two days later | on
the very next day

walked:
ran | walked | skipped | hurried | trotted | marched | strolled | wandered | dashed

hurried:
ran | hurried | dashed | raced | rushed | trotted | galloped

said:
said | said | said | whispered | cried | called | exclaimed

smiled:
smiled | grinned | beamed | laughed | chuckled | nodded

play:
climbed a wall, rolled down a bank and sang to the echo
| raced {his} own shadow and jumped over every puddle
| balanced along a fence and talked to a cat
| counted boats, clouds and chimneys
| made faces at {his} reflection in the water
| built a tower of flat stones and knocked it over again
| played at being a pirate
| galloped about like a wild horse
| spun round and round until {he} was dizzy
| followed a line of ants all the way to its end
| skimmed pebbles and shouted at every splash

chore:
helped with the washing | stacked firewood against the wall | fed the chickens | painted the fence
| peeled potatoes | swept the yard | weeded the carrots | polished the boots | went to school
| chopped onions | shelled peas | hung out the sheets | raked the gravel | carried water

pastime:
learned to read thick books | caught a cold and got better again | practised handstands | grew a
little taller | collected bottle tops | taught a snail to race | drew a map of the garden | learned
a long poem | dug a hole to nowhere | whittled a stick

worried:
sick with worry | cold and small | close to tears | terribly lonely | empty inside | as heavy as a
stone | very small and very alone | miserable | quite hopeless

glad:
as light as a feather | warm all over | ten feet tall | as happy as a lark | very proud | so glad
that {he} could have danced | as cosy as a cat by the stove | like singing

searched:
under every bush and behind every stone
| high and low
| in the ditch, in the nettles and on the path
| up the lane and down again
| in all the places where {he} had been
| under the leaves, between the roots and along the wall

sound:
a soft rustle | a tiny squeak | a faint tinkle | a long creak | a low hum | a sudden thump | a
quiet cough | a strange whistling | a scratching noise | a gentle tapping | a muffled sneeze

snack_bite:
ate it to the last crumb | nibbled at it slowly | shared it with a hungry sparrow | saved half of
it for later | licked {his} lips

peered:
peered out of the window | sat on the garden wall | stood on tiptoe at the gate | climbed the
highest branch | walked to the crossroads | leaned over the fence

errand:
to stay with an uncle | to learn weaving from an aunt | to help a cousin with the harvest | to see
the mountains | to go to school in the city | to look after a sick grandmother | to sing in a choir
| to spend a whole season by the sea

beyond:
beyond the hill | on the far side of the forest | past the last farm | across the moor | two
villages away | at the other end of the valley | behind the three ponds

waterside:
by the weir | among the reeds | under the low bridge | where the stream meets the river | at the
washing place | beside an old jetty | in the shallows

praise:
Well done | I am proud of you | I knew I could count on you | You have a good heart | You are
braver than you think | Nobody could have done it better | That makes me happy

dream:
sailing ships | a house made of music | flying over the rooftops | a dance on the moon | a mountain
of pillows | friendly giants | a long road in the sun | whales that could sing

coda:
That night {hero} fell asleep at once and dreamed of {dream}.
| {hero} felt {glad}.
| {hero} never forgot it.
| {hero} hummed all the way to bed.
| {hero} told everyone about it.
| And that is how it ended.
| Everyone was content.
| And {hero} felt {glad} for the rest of the week.
| That night {he} dreamed of {dream}.
| If you meet {hero} one day, ask about it.
| {hero} laughed out loud.
| And so all was well again.
| The stars came out one by one, and {hero} counted them from {his} bed.
|
""") | {"trait": TRAITS}
