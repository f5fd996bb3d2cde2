"""Plots of something asked for, lent or foretold, and of the one who sees it through."""

from relation.data.tales.notation import Plot

ERRANDS = (
    Plot(
        "the borrowed tool",
        threads=("tool", "elder", "deadline"),
        sleepers=("elder", "deadline"),
        text="""
{intro}

One day {he} went to see {elder}, {e_who}, and asked for the {tool}.
| {elder}, {e_who}, owned {a_tool}, and one day {hero} asked to borrow it.
| "May I borrow the {tool}?" {hero} asked {elder}, {e_who}.
| In the shed of {elder}, {e_who}, hung {a_tool}, just the thing for {hero}.

"You may," said {elder}, "but bring it back {deadline}."
| "Take it," said {elder}. "I need it myself tonight, so be here {deadline}."
| "If you are back {deadline}, you may have it," said {elder}.

"I will," said {hero}, and off {he} went.
| {hero} gave {his} word and {walked} away with it.
| "You can rely on me," said {hero}.
---
{He} had not gone far when somebody called for help. {He} {deed_one}.
| First {he} {walked} {to_site}. There {he} {deed_one}.
| It was a lucky day for everyone. {To_site} {he} {walked}, and there {he} {deed_one}.
| {hero} whistled as {he} {walked} along, and before {he} had even finished the tune, {he}
  {deed_one}.

"What luck that you came by!" said {neighbour} the {n_kind}.
| "You are a treasure," said {neighbour} the {n_kind}, who had watched it all.
| {neighbour} the {n_kind} clapped and cheered.
|
--- way
{Soon}, {he} was needed again. {He} {deed_two}.
| One good deed leads to another. {Soon}, {he} {deed_two}.
| "Over here!" somebody shouted. {hero} turned back and {deed_two}.

"Sell me that," said the {passer}. "I will give you {a_other_thing} for it."
| "What a fine {tool}!" said the {passer}. "Shall we trade it for {a_other_thing}?"
| The {passer} had been watching. "I could use one of those. Would you take {a_other_thing}?"

"It is not mine to give," said {hero}.
| {hero} shook {his} head and held on tight.
--- way
Last of all {he} {deed_three}. Then {he} saw how long the shadows were.
| And because good things come in threes, {he} {deed_three}. How late it was!
| There was one more thing to do: {he} {deed_three}. And then it was almost too late.

"I gave my word," {hero} said to {himself}, and {he} began to run.
| {He} took the short cut over the wall and tore a hole in {his} sleeve.
| {He} ran faster than {he} had ever run before.
| There was no time to say goodbye. {hero} {hurried} home as fast as {he} could.
---
{elder} was standing at the door.
| {elder} looked at the sky and then at {hero}.
| {elder} was just coming down the steps when {hero} arrived.

"You said {deadline}," panted {hero}, "and here is the {tool}."
| "I said {deadline}, and you kept your word," said {elder}, and hung the {tool} on its hook.
| "Is it still {deadline}?" gasped {hero}. "Here is your {tool}!"

"{praise}," said {elder}. "You may borrow it whenever you like."
| "Sit down and tell me where it has been," said {elder}, and {hero} did.
| The next time, {hero} did not even have to ask.

{coda}
""",
    ),
    Plot(
        "the seed",
        threads=("bloom", "elder"),
        sleepers=("bloom", "elder"),
        text="""
{intro}

One day {elder}, {e_who}, gave {him} a seed no bigger than a crumb.
| {elder}, {e_who}, took a seed out of a paper bag and dropped it into {his} {hand}.
| At the fair {he} met {elder}, {e_who}, and came home with a single seed.

"It looks like nothing," said {elder}, "but if you are patient, it will be {a_bloom}."
| "In there sleeps {a_bloom}," said {elder}. "You only have to wake it."
| "Plant it," said {elder}, "and one day there will be {a_bloom}."

{hero} held it up to the light and saw nothing at all.
| "So much in so little?" said {hero}.
| {hero} {walked} home with it as if it were made of glass.
| {hero} gave the seed a name, but {he} kept that to {himself}.
---
{He} filled a pot with earth, pressed the seed into it and set it in the sun. Every morning {he}
watered it.
| {hero} found a cracked pot and the best earth in the garden. Then {he} watered and waited.
| The seed got a bed of soft earth and a sip of water, and {hero} wished it good night.

A week passed, and nothing happened.
|
| "Hurry up," {he} told it, but seeds have no ears.
| Each day {he} looked, and each day there was only earth.
--- wait
{neighbour} the {n_kind} had planted something too, and there it was already: {a_other_bloom}.
| In the pot of {neighbour} the {n_kind} stood {a_other_bloom}, tall and straight.
| "Come and look!" called {neighbour} the {n_kind}. On the wall stood {a_other_bloom}, as proud as a
  king.

"Yours is dead," said {neighbour}. "Throw it away."
| "Have mine, and stop worrying," said {neighbour}.

{hero} felt {worried}, but {he} went on watering.
|
| "No, thank you," said {hero}. "Mine is only slow."
--- wait
One night a storm blew the pot off the wall. {hero} ran out in the dark and saved what {he} could.
| One day the cat knocked the pot over. {hero} swept up every grain of earth.
| Then a ball came flying over the hedge, and the pot broke into {count} pieces.

In the middle of the mess there was a thin pale shoot. It was alive!
| And what was that? A tiny leaf, no longer than an eyelash.
---
Then, one morning, the bud opened, and it was {a_bloom}.
| When {he} woke up the next Sunday, {a_bloom} was nodding in the pot.
| {Count} days later it was there, fresh and shining: {a_bloom}.

{He} carried it through the whole village to {elder}.
| "{elder}! {elder}!" {he} called. "Come and see!"
| {hero} knew at once who had to see it. {elder} was at home.

"I told you so," said {elder}. "It only wanted time."
| "You were right," said {hero}, and {elder} {smiled}.
| "{praise}," said {elder}, and gave {him} a whole bag of seeds.

{coda}
""",
    ),
    Plot(
        "the message",
        threads=("thing", "friend", "message"),
        sleepers=("thing", "friend", "message"),
        text="""
{intro}

One day {elder}, {e_who}, wrapped {a_thing} in paper. "Take it to {friend}, who lives {beyond},"
said {elder}, "and say that {message}."
| "I have an errand for you," said {elder}, {e_who}. "Bring {friend} this parcel with {a_thing},
  and say that {message}. The house is {beyond}."
| {elder}, {e_who}, needed a messenger. "{friend}, {beyond}, is to have {a_thing} from me," said
  {elder}. "And do not forget to say that {message}."

{hero} said it over three times so as to remember.
| "I will not forget," said {hero}, and tucked the parcel under {his} arm.
| {hero} had never been allowed to go so far alone.
| "I am on my way," said {hero}, and put on {his} best hat.
---
The road led {to_site}. {hero} sang to keep up {his} courage.
| {hero} {walked} along with the parcel and murmured the words.
| It was a long way, and {he} {play} as {he} went, but {he} never put the parcel down.

A dog barked. A cart rattled past. Somewhere there was {sound}.
| The hills looked very high and the clouds very low.
| With each mile the parcel grew a little heavier.
|
--- way
{neighbour} the {n_kind} came out of a hedge and sniffed at the parcel.
| A little further on sat {neighbour} the {n_kind}, who was very nosy.
| "Stop!" called {neighbour} the {n_kind}. "Let me see what you have there."

"I may not tell what it is," said {hero}. "Then I will trade it for {a_other_thing}," said
{neighbour}, but {hero} kept walking.
| "Is it for me?" asked {neighbour}. "I have only {a_other_thing}, and I am tired of it." "I am
  sorry," said {hero}, "but it is not."
--- way
{At_last} {he} came to a house {beyond}.
| Late in the day {he} saw a chimney and a garden gate. That had to be the house.
| {He} asked the {passer} for the way, and {soon} {he} was there.

But what was the message? For a moment {his} head was as empty as a drum. Then {he} had it again.
| {He} shook the dust off {his} coat and knocked.
| {hero} was so tired that {he} knocked with {his} forehead.
| There was a bell on a chain, and {hero} pulled it with both {hands}.
---
{friend}, {a_trait} {f_kind}, opened the door.
| The one who opened was {a_trait} {f_kind}. "I am {friend}," {f_he} said.
| "Who is there?" called {friend}, {a_trait} {f_kind} with {feature}.

"I am to say that {message}," said {hero} in one breath.
| {hero} stood up straight. "{Message}," {he} said. And then once more, to be safe: "I was told to
  say that {message}."
| "I have come to tell you that {message}," said {hero}.

"What good news!" cried {friend}, and unwrapped the {thing}.
| {friend} opened the parcel and lifted out the {thing}. "How I have missed it!"
| Out of the paper came the {thing}, and {friend} clapped {f_his} {f_hands}.

{hero} stayed for supper and got some {treat}.
| "You are the best messenger in the land," said {friend}.
| {coda}
""",
    ),
    Plot(
        "the list",
        threads=("elder", "treat", "first", "second", "third"),
        sleepers=("elder", "treat", "first", "second", "third"),
        text="""
{intro}

One day {elder}, {e_who}, wanted to make some {treat}.
| "Today there will be {treat}," said {elder}, {e_who}.
| Nobody could make {treat} like {elder}, {e_who}.

"Run to the shop," said {elder}, "and bring me {first}, {second} and {third}."
| "But for that I need {first}, {second} and {third}," said {elder}. "Will you go?"
| "If you fetch me {first}, {second} and {third}," {elder} told {hero}, "you shall have the biggest
  piece."

There was no paper in the house, so {hero} had to keep it all in {his} head.
| "I do not need to write it down," said {hero}.
| {hero} took a bag and {walked} away.
---
{He} said it aloud at every step. But then {he} {play}, and the words began to mix.
| All went well until {he} came to the bridge. There {he} {play}.
| {hero} made a song of it and sang it all along the lane. A bee flew by, and {he} lost the tune.
| For a mile {he} had it all by heart. Then {he} {play}, and after that {he} was not so sure.

"Was it {fourth}?" {he} wondered. "Or was it {fifth}?"
| "Perhaps it was {fourth} and {fifth}," {he} thought, but that did not sound right.
--- way
On a gate sat {neighbour} the {n_kind}. "Buy {a_other_thing}," said {neighbour}. "Everyone likes
that."
| "Bring whatever you please," advised {neighbour} the {n_kind}. "Nobody will notice."
| "I always buy {a_other_thing}," said {neighbour} the {n_kind}, who had been listening at a hedge.

"It must be the right thing," said {hero}.
| {hero} felt {worried} and {hurried} on.
|
--- way
In the shop {he} closed {his} eyes and thought of the kitchen. Slowly it came back. "I have got
it!" {he} cried.
| The shopkeeper drummed with all ten fingers. {hero} stood on one leg, and that helped. Now {he}
  knew it all again.
| {He} sniffed at every shelf until {his} nose remembered for {him}.
| "Next, please!" called the shopkeeper. {hero} opened {his} mouth, and out it all came by itself.

With a full bag {he} {hurried} home and did not stop once.
| {He} paid, counted the change and {walked} home.
| On the way back {he} held the bag in both arms like a baby.
---
"Did you get everything?" asked {elder}.
| "What have you brought me?" asked {elder}.
| {elder} was waiting in the doorway.

On the kitchen table {hero} put {first}, {second} and {third}.
| "I have {first}, {second} and {third}," said {hero} proudly.
| Out of the bag came {first}, {second} and {third}, and nothing was broken.

An hour later the whole house smelled of {treat}.
| Soon the {treat} was in the oven, and they sat and watched it.
| Never had {treat} tasted so good.
| {elder} stirred and kneaded, and before dark there was {treat} for the whole street.

{coda}
""",
    ),
    Plot(
        "the signal",
        threads=("elder", "light", "times"),
        sleepers=("elder", "light", "times"),
        text="""
{intro}

One day {elder}, {e_who}, had to sail across the water, and nobody could say for how long.
| Then {elder}, {e_who}, was called away to an island far out in the bay.
| {hero} was very fond of {elder}, {e_who}. But now {elder} had to go on a long voyage.

"On the night I come home," said {elder}, "you will see {a_light}. It will blink {times}."
| "Watch for {a_light}," said {elder}. "When it blinks {times}, it is me."
| "I will hang {a_light} on the mast and make it blink {times}," said {elder}. "Then you can put
  the kettle on."

{hero} stood on the shore until there was only water.
| {hero} nodded and could not say a word.
| "I will watch every night," said {hero}.
---
Every night, when supper was over, {he} {peered} and looked out over the water.
| By day {hero} {chore}. By night {he} sat at the window in the attic.
| The nights were long. {hero} wrapped {himself} in a rug and counted the waves.
| Summer people came and went. {hero} {pastime}, but at dusk {he} was always on the rocks.
--- wait
Once there was {a_other_light}. {hero} flew down to the shore, but it was only a fishing boat.
| One night {he} saw {a_other_light} and shouted for joy. But it was only {neighbour} the {n_kind},
  looking for a lost shoe.

"You should be in bed," said {neighbour} the {n_kind}.
| "Go to sleep," said {neighbour} the {n_kind}. "I will wake you." But {hero} did not trust anyone
  else to count.

{hero} felt {worried}.
| {hero} went back to {his} place and waited.
|
--- wait
Then came a storm. The waves were as high as houses, and no ship was to be seen.
| Autumn storms rattled the shutters, and the sea roared all night.
| The barometer fell and fell. At midnight the wind took the roof off the boat shed.

{hero} put a candle in the window and did not sleep.
| "Please come home," {he} whispered into the wind.
| In the morning the sea was flat and empty, as if nothing had happened.
---
The next night {he} saw it: {a_light}, far out.
| It was nearly midnight when {he} rubbed {his} eyes. Was that {a_light}?
| At first it was no more than a spark, but it came closer, and then it was {a_light}.

{hero} counted under {his} breath. It blinked {times}.
| It blinked {times}, and then it blinked {times} again.
| On and off it went, {times} and not once more.
| "It must blink {times}," {he} said aloud. And it blinked {times}.

"{elder}!" {he} cried, and ran into the water up to {his} knees.
| The boat touched the sand, and out climbed {elder}, stiff and salty.
| {He} was on the shore before the boat was, and {elder} lifted {him} high into the air.

"{praise}," said {elder}. "You kept good watch."
| The kettle was already singing.
| {coda}
""",
    ),
)
